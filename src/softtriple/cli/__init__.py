"""The command line: one file for each group of verbs."""

from softtriple.cli.main import app as app
from softtriple.cli.main import main as main
