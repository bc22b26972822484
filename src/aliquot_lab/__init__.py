"""What Aliquot is compared, measured and shown with: simulator, benchmarks, demonstration.

It may import all of `aliquot`, which never imports it (docs/decisions/0045-the-laboratory.md).
"""
