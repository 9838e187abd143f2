"""What every program uses and is nobody's field: values, texts, strict reading, documents with lines; files, programs,
pauses."""
