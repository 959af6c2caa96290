"""What runs inside a container: its image and its script."""
