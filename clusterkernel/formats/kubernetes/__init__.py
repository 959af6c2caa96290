"""Kubernetes manifests: Job, JobSet, PyTorchJob, TrainJob."""
