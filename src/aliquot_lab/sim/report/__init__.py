"""The report: one HTML file with its pictures inside, for a screen or paper, light or dark."""
