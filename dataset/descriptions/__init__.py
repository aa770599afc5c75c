"""Descriptions and texts of a pipeline. This package asks stages and knows none of them by name."""
