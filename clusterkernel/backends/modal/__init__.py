"""Modal, through its own client."""
