"""What all of Aliquot's servers have in common: certificates that are renewed, connections that are bounded."""
