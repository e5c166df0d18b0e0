"""Interfaces to other tools: scikit-learn, sentence-transformers, the Hugging Face hub, ONNX and TorchScript."""
