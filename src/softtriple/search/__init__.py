"""Search: exact nearest neighbours in memory, vector stores, and indexing a run's data into them."""

from softtriple.search.knn import Neighbors as Neighbors
from softtriple.search.knn import nearest as nearest
from softtriple.search.resident import resident as resident
from softtriple.search.store import Hit as Hit
from softtriple.search.store import Item as Item
from softtriple.search.store import Store as Store
from softtriple.search.store import Stored as Stored
from softtriple.search.store import open_store as open_store
