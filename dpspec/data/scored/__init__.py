"""Tables of scores that another program wrote: named columns out of untrusted files, and what they have to hold."""
