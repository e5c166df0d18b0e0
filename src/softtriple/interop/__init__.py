"""Bridges to other tools: a scikit-learn estimator, and export to ONNX, TorchScript and torch.export."""
