"""A page about runs that a browser shows offline: charts, tables, and what came out in a sentence."""
