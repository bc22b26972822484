"""Where jobs come from: published traces, tables of your own, and generators; all drawn from one seed."""
