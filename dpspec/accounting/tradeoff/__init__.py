"""Trade-off functions (f-DP): closed forms, polygons, certified curves of a privacy loss, the nearest mu-GDP."""
