"""The gallery: a web page and a JSON API to search a store and see how well its classes are separated."""

from softtriple.gallery.app import create_app as create_app
from softtriple.gallery.security import Settings as Settings
