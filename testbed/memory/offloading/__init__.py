"""Host caches below the device as serving systems have them, one file a system."""
