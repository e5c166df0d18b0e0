"""The gallery: a page and a JSON interface to look at what a run has learned."""

from softtriple.gallery.app import create_app as create_app
from softtriple.gallery.settings import Settings as Settings
