"""The arena: one bench for eviction orders, memory policies, schedulers and routers."""
