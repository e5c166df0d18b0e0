"""The command line, a thin layer over the Python API: each verb parses, calls and prints."""

from softtriple.cli import audit, inspect, search, share, train  # noqa: F401  # they add their verbs to the application
from softtriple.cli.app import app as app
from softtriple.cli.app import main as main
