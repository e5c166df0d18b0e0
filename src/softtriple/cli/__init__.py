"""The command line, a thin layer over the Python API: each verb parses, calls and prints."""

# Each module adds its verbs to the application, in the order of --help.
from softtriple.cli import train, inspect, audit, search, share  # noqa: F401, I001
from softtriple.cli.app import app as app
from softtriple.cli.app import main as main
