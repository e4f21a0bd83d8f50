"""How far one number of a spec may go while its claims are proved."""
