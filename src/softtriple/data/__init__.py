"""Sources of labelled images, vectors and texts, as values: Benchmark(train, test); and batches of them."""

from softtriple.data.batches import Batch as Batch
from softtriple.data.batches import batches as batches
from softtriple.data.benchmark import Benchmark as Benchmark
from softtriple.data.benchmark import ImageArray as ImageArray
from softtriple.data.benchmark import ImageFiles as ImageFiles
from softtriple.data.benchmark import Items as Items
from softtriple.data.benchmark import Split as Split
from softtriple.data.benchmark import Texts as Texts
from softtriple.data.benchmark import Vectors as Vectors
from softtriple.data.benchmark import contiguous_labels as contiguous_labels
from softtriple.data.benchmark import hold_out_classes as hold_out_classes
from softtriple.data.cache import ImageCache as ImageCache
from softtriple.data.cache import open_cache as open_cache
from softtriple.data.images import View as View
from softtriple.data.readable import find_unreadable as find_unreadable
from softtriple.data.sampling import in_order as in_order
from softtriple.data.sampling import m_per_class as m_per_class
from softtriple.data.sampling import rows_of_classes as rows_of_classes
from softtriple.data.sampling import shuffled as shuffled
from softtriple.data.sources import load_benchmark as load_benchmark
from softtriple.data.storage import cache_directory as cache_directory
from softtriple.data.vector_files import VectorFile as VectorFile
from softtriple.data.vector_files import read_vectors as read_vectors
from softtriple.data.vector_files import write_vectors as write_vectors
from softtriple.pixels import ImageError as ImageError
from softtriple.pixels import decode_image as decode_image
