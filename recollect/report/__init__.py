"""From run folders to what a person looks at: one page, tables, figures, videos. Nothing here trains anything."""
