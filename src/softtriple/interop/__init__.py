"""softtriple in other people's tools: scikit-learn, ONNX."""
