"""Retrieval and clustering metrics with confidence intervals, the `Report` of them, and the comparison of reports."""

from softtriple.metrics.calibration import Calibration as Calibration
from softtriple.metrics.calibration import calibrate as calibrate
from softtriple.metrics.calibration import format_calibration as format_calibration
from softtriple.metrics.clustering import Clustering as Clustering
from softtriple.metrics.clustering import ami as ami
from softtriple.metrics.clustering import kmeans as kmeans
from softtriple.metrics.clustering import nmi as nmi
from softtriple.metrics.comparison import Difference as Difference
from softtriple.metrics.comparison import difference_intervals as difference_intervals
from softtriple.metrics.comparison import format_comparison as format_comparison
from softtriple.metrics.evaluate import Embeddings as Embeddings
from softtriple.metrics.evaluate import evaluate as evaluate
from softtriple.metrics.evaluate import evaluate_file as evaluate_file
from softtriple.metrics.intervals import class_intervals as class_intervals
from softtriple.metrics.report import ClassResult as ClassResult
from softtriple.metrics.report import KMeansRuns as KMeansRuns
from softtriple.metrics.report import Report as Report
from softtriple.metrics.report import format_table as format_table
from softtriple.metrics.retrieval import map_at_r as map_at_r
from softtriple.metrics.retrieval import precision_at_1 as precision_at_1
from softtriple.metrics.retrieval import r_precision as r_precision
from softtriple.metrics.retrieval import recall_at_k as recall_at_k
from softtriple.search.knn import first_hit_ranks as first_hit_ranks
