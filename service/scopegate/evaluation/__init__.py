"""How good detection, responses, retrieval, answers and labels are, and thresholds with a guarantee."""
