"""Migration policies and their public interface."""
