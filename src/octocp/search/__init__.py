"""Fast search for incumbents on a compiled evaluator."""
