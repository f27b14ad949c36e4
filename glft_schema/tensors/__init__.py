"""A payload in a file: the tensor, the region that holds all payloads, and the copy to a GPU."""
