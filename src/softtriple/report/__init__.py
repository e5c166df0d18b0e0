"""The report page of a run, with its charts and pictures, and the count of distinct centres."""

from softtriple.report.page import write_page as write_page
