"""What a pipeline says of itself: errors, texts, descriptions. It asks stages, and knows none."""
