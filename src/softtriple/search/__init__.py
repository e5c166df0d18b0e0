"""Search: exact nearest neighbours."""

from softtriple.search.knn import Neighbors as Neighbors
from softtriple.search.knn import nearest as nearest
