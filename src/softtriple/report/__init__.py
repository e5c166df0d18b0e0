"""The report page of a run, with its charts, pictures and calibration, and the count of distinct centres."""

from softtriple.report.calibration import write_calibration as write_calibration
from softtriple.report.page import write_page as write_page
