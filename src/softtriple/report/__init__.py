"""What a run shows to people: the report page, its charts and pictures, and counts of centres."""

from softtriple.report.page import write_page as write_page
