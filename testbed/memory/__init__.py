"""Memory policies: may these sequences have room, and where?"""
