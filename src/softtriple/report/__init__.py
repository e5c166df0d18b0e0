"""What a run shows a person: the page, its charts and its pictures."""
