"""Studies of the simulator's own errors: loads of servers, profiles left out."""
