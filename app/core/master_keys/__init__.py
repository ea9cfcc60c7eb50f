"""Master keys: `key_registry` knows those in use; `resealing` lists columns and seals anew."""
