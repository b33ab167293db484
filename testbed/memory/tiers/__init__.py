"""Prefix caches whose content also lies in tiers below the device."""
