"""Studies of the simulator's own errors: pairs and loads of the GPU engine, profiles left out."""
