"""What a program of the documents leaves to its reader, by framework; the tests put it in front."""
