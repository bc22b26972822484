"""The dashboard: pages and a JSON API over whatever can tell the facts; it reads and never writes."""
