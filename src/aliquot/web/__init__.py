"""The dashboard: pages and a JSON API over any source of facts; read-only."""
