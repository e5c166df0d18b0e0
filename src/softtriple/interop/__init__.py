"""Bridges to other tools: scikit-learn, the Trainer of sentence-transformers, ONNX, TorchScript and torch.export."""
