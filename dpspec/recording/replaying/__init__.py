"""A script's training is set up on neighbouring data sets, and compared in what must not depend on rows.

``replay`` calls the script, ``neighbours`` makes the data sets, ``parts`` reads what it made, ``steps`` makes one
update of it, ``outcome`` is what is told.
"""
