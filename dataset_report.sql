-- The queries of the folder report, by name. :tiles, :grid_tiles and :accepted stand for the queries of these names.
-- A query for findings returns code, path and detail, a file at most once for each code. :findings stands for it.

-- query found
-- The first @limit findings of each code that nobody has accepted, with the totals of the code. A code whose findings
-- are all accepted has one row.
SELECT code, path, detail, is_accepted, total, accepted
FROM (
  SELECT *,
    count(*) FILTER (WHERE NOT is_accepted) OVER of_code AS total,
    count(*) FILTER (WHERE is_accepted) OVER of_code AS accepted,
    row_number() OVER (PARTITION BY code, is_accepted ORDER BY path) AS nth
  FROM (SELECT *, :accepted AS is_accepted FROM (:findings) f) f
  WINDOW of_code AS (PARTITION BY code)
) f
WHERE nth <= @limit AND NOT is_accepted OR nth = 1 AND total = 0
ORDER BY code, path

-- query page
-- The next findings of one code that nobody has accepted.
SELECT path, detail
FROM (:findings) f
WHERE code = @code AND path > @after AND NOT :accepted
ORDER BY path
LIMIT @limit

-- query accepted
-- Whether a finding was accepted, by itself or with all of its code.
(code IN (SELECT code FROM accepted_findings WHERE dataset_id = @dataset AND path IS NULL)
  OR (code, path) IN (SELECT code, path FROM accepted_findings WHERE dataset_id = @dataset AND path IS NOT NULL))

-- query tiles
-- The rasters of the dataset @dataset whose edges are parallel to the axes of their CRS. Sizes too large or too small
-- to compute with are left out.
SELECT *
FROM (
  SELECT path, modified_ns, coalesce(crs, crs_name, '') AS crs, coalesce(crs_definition, '') AS definition,
    to_char(abs(transform[5]), '9.99999EEEE') AS pixel,
    abs(transform[1]) AS dx, abs(transform[5]) AS dy,
    CASE WHEN abs(native_bbox[1]) < 1e-12 THEN 0 ELSE native_bbox[1] END AS x,
    CASE WHEN abs(native_bbox[2]) < 1e-12 THEN 0 ELSE native_bbox[2] END AS y,
    native_bbox[3] - native_bbox[1] AS w, native_bbox[4] - native_bbox[2] AS h
  FROM elevation_dataset_file_meta
  WHERE dataset_id = @dataset AND native_bbox IS NOT NULL AND transform[2] = 0 AND transform[4] = 0
    AND greatest(abs(native_bbox[1]), abs(native_bbox[2]), abs(native_bbox[3]), abs(native_bbox[4])) < 1e15
) t
WHERE least(dx, dy, w, h) > 1e-12

-- query grid_tiles
-- The tiles of the grids @grids, with the number of their grid. @definitions has the definition of each grid's CRS.
-- A tile covers the cell around its centre, and every cell whose centre it holds. A raster wider or higher than 8 cells
-- is not a tile.
SELECT *,
  least(floor(u + uw / 2), ceil(u - 0.49))::bigint AS column_from,
  greatest(floor(u + uw / 2), floor(u + uw - 0.51))::bigint AS column_to,
  least(floor(v + vh / 2), ceil(v - 0.49))::bigint AS row_from,
  greatest(floor(v + vh / 2), floor(v + vh - 0.51))::bigint AS row_to,
  (u - round(u)) * east / dx AS off_x, (v - round(v)) * north / dy AS off_y
FROM (
  SELECT t.*, grid, east, north, (x - x0) / east AS u, (y - y0) / north AS v, w / east AS uw, h / north AS vh
  FROM (:tiles) t
  JOIN ROWS FROM (jsonb_to_recordset(@grids::jsonb)
    AS (crs text, pixel_height float8, origin_x float8, origin_y float8, step_x float8, step_y float8),
    unnest(@definitions::text[])
  ) WITH ORDINALITY AS g (crs, height, x0, y0, east, north, definition, grid)
    ON g.crs = t.crs AND g.definition = t.definition AND to_char(g.height, '9.99999EEEE') = pixel
  OFFSET 0 -- an optimization fence: the join to the grid must come before generate_series expands the cells
) t
WHERE w < 8 * east AND h < 8 * north

-- query grids
-- The grids with the most tiles, by CRS and pixel: at least three tiles, at most 20 grids. Step and origin are medians,
-- so that a few misplaced tiles do not move them: of the steps from a tile to the next one in its row and in its column,
-- and of the offsets of tiles from the grid with these steps.
WITH tiles AS MATERIALIZED (:tiles),
groups AS (
  SELECT crs, definition, pixel, count(*) AS tiles, min(dx) AS dx, min(dy) AS dy, min(x) AS x, min(y) AS y,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY w) AS w, percentile_disc(0.5) WITHIN GROUP (ORDER BY h) AS h
  FROM tiles
  GROUP BY crs, definition, pixel
  HAVING count(*) >= 3
  ORDER BY tiles DESC, crs, definition, pixel
  LIMIT 20
)
SELECT g.crs, g.definition, tiles, dx, dy, origin.x, origin.y, east, north
FROM groups g, LATERAL (
  SELECT
    coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY east)
      FILTER (WHERE east BETWEEN g.w / 2 AND g.w * 1.001), g.w) AS east,
    coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY north)
      FILTER (WHERE north BETWEEN g.h / 2 AND g.h * 1.001), g.h) AS north
  FROM (
    SELECT lead(x) OVER (PARTITION BY round((y - g.y) / g.h) ORDER BY x) - x AS east,
      lead(y) OVER (PARTITION BY round((x - g.x) / g.w) ORDER BY y) - y AS north
    FROM tiles t
    WHERE (t.crs, t.definition, t.pixel) = (g.crs, g.definition, g.pixel)
  ) t
) step, LATERAL (
  SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY t.x - east * round((t.x - g.x) / east)) AS x,
    percentile_disc(0.5) WITHIN GROUP (ORDER BY t.y - north * round((t.y - g.y) / north)) AS y
  FROM tiles t
  WHERE (t.crs, t.definition, t.pixel) = (g.crs, g.definition, g.pixel)
) origin
ORDER BY tiles DESC, g.crs, g.definition, pixel

-- query cells
-- The runs of cells with a tile. In a run, column minus rank is constant. Tiles of one cell have the same rank.
SELECT grid, row, min(c) AS from, max(c) AS to
FROM (
  SELECT grid, r AS row, c, c - dense_rank() OVER (PARTITION BY grid, r ORDER BY c) AS run
  FROM (:grid_tiles) t, generate_series(row_from, row_to) r, generate_series(column_from, column_to) c
) cells
GROUP BY grid, row, run
ORDER BY grid, row, min(c)

-- query unusable
-- Files that cannot be read, unsupported ones with the extension of readable ones, and files without an extent.
SELECT path, concat_ws('; ', coalesce(reason, status), nullif(array_to_string(warnings, '; '), '')) AS detail,
  CASE
    WHEN status = 'corrupt' THEN 'corrupt'
    WHEN status IN ('no_bbox', 'no_georef') THEN 'no_extent'
    ELSE 'unreadable'
  END AS code
FROM elevation_dataset_file_meta
WHERE dataset_id = @dataset AND status <> 'ok' AND (
  status IN ('corrupt', 'unreadable', 'no_bbox', 'no_georef')
  OR status = 'unsupported' AND lower(substring(path FROM '[.][^./]*$')) IN (
    SELECT lower(substring(path FROM '[.][^./]*$'))
    FROM elevation_dataset_file_meta
    WHERE dataset_id = @dataset AND status = 'ok'
  )
)

-- query warnings
-- Files with the reader's warnings, other than that about their name. The query unusable shows those of files without
-- extent.
SELECT 'warning' AS code, path, array_to_string(others, '; ') AS detail
FROM (
  SELECT path, ARRAY(SELECT warning FROM unnest(warnings) warning WHERE warning NOT LIKE 'its name says%') AS others
  FROM elevation_dataset_file_meta
  WHERE dataset_id = @dataset AND warnings <> '{}' AND status NOT IN ('corrupt', 'unreadable', 'no_bbox', 'no_georef')
) f
WHERE others <> '{}'

-- query duplicates
-- Tiles with the same extent (to a tenth of a pixel) and size in pixels as another. The oldest file of a group is not
-- listed; among equally old ones, that with the shortest path.
SELECT 'duplicate' AS code, path, 'same extent and size in pixels as ' || first AS detail
FROM (
  SELECT path, first_value(path) OVER (
    PARTITION BY crs, definition, pixel, round(x / dx * 10), round(y / dy * 10), round(w / dx), round(h / dy)
    ORDER BY modified_ns, length(path), path
  ) AS first
  FROM (:tiles) t
) t
WHERE path <> first

-- query overlaps
-- Tiles that share a cell, and some area, with another tile.
SELECT DISTINCT ON (path) 'overlap' AS code, path,
  format('column %s, row %s of its grid, as %s', c, r, first) AS detail
FROM (
  SELECT *, first_value(path) OVER cell AS first, first_value(ARRAY[x, y, x + w, y + h]) OVER cell AS box
  FROM (:grid_tiles) t, generate_series(row_from, row_to) r, generate_series(column_from, column_to) c
  WINDOW cell AS (PARTITION BY grid, r, c ORDER BY path)
) t
WHERE path <> first AND box <> ARRAY[x, y, x + w, y + h]
  AND x + dx / 2 < box[3] AND x + w - dx / 2 > box[1] AND y + dy / 2 < box[4] AND y + h - dy / 2 > box[2]
ORDER BY path, r, c

-- query seams
-- Tiles whose offset from the grid is not a whole number of pixels.
SELECT 'seam' AS code, path,
  format('off by %s pixels in x, %s in y', round(off_x::numeric, 2), round(off_y::numeric, 2)) AS detail
FROM (:grid_tiles) t
WHERE abs(off_x - round(off_x)) > 0.05 OR abs(off_y - round(off_y)) > 0.05

-- query odd
-- Files with an attribute that differs from the usual value, that of at least three quarters of the files. Pixels are
-- compared in one CRS only, and shown in metres on the ground. A CRS that is missing or unknown is no_extent already.
WITH kinds AS MATERIALIZED (
  SELECT status = 'ok' AS placed, coalesce(crs, crs_name, '') AS system, abs(transform[5]) AS pixel,
    sample_type, nodata, vertical_crs, count(*) AS n
  FROM elevation_dataset_file_meta
  WHERE dataset_id = @dataset AND native_bbox IS NOT NULL
  GROUP BY 1, 2, 3, 4, 5, 6
),
attributes AS MATERIALIZED (
  SELECT kinds.*, code, within, value
  FROM kinds, LATERAL (VALUES
    ('crs', '', CASE WHEN placed THEN system END),
    ('vertical_crs', '', CASE WHEN placed THEN coalesce(vertical_crs, 'none') END),
    ('resolution', system, CASE WHEN system <> '' THEN ltrim(to_char(pixel, '9.99999EEEE')) END),
    ('sample_type', '', coalesce(sample_type, 'none')),
    ('nodata', '', coalesce(nodata, 'none'))
  ) v (code, within, value)
  WHERE value IS NOT NULL
),
shares AS (
  SELECT code, within, value, sum(n) / sum(sum(n)) OVER (PARTITION BY code, within) AS share
  FROM attributes
  GROUP BY code, within, value
),
odd AS MATERIALIZED (
  SELECT a.*, u.value AS usual
  FROM attributes a
  JOIN shares u ON u.code = a.code AND u.within = a.within AND u.share >= 0.75 AND u.value <> a.value
)
SELECT code, path,
  CASE
    WHEN code <> 'resolution' THEN format('%s where %s is usual', value, usual)
    WHEN resolution_m > 0 AND value::float8 > 0 THEN format('pixels of %s m where %s m is usual',
      to_char(resolution_m, '9.99EEEE')::float8,
      to_char(resolution_m / value::float8 * usual::float8, '9.99EEEE')::float8)
    ELSE format('pixels of %s where %s is usual', value::float8, usual::float8)
  END AS detail
FROM odd
JOIN elevation_dataset_file_meta f ON dataset_id = @dataset AND native_bbox IS NOT NULL AND (status = 'ok') = placed
  AND coalesce(f.crs, f.crs_name, '') = odd.system AND abs(f.transform[5]) = odd.pixel
  AND f.sample_type IS NOT DISTINCT FROM odd.sample_type AND f.nodata IS NOT DISTINCT FROM odd.nodata
  AND f.vertical_crs IS NOT DISTINCT FROM odd.vertical_crs

-- query names
-- Files whose names contradict their place. If three quarters of the names hold the coordinates of the lower or upper
-- left corner (in units, km, 10 km or 100 km), the files whose names do not are listed. Files with the reader's warning
-- about their name are listed too.
WITH named AS MATERIALIZED (
  SELECT path,
    format('its lower left corner is at %s, %s', round(x::numeric, 6)::float8, round(y::numeric, 6)::float8) AS place,
    EXISTS (
      SELECT
      FROM unnest(ARRAY[1, 1000, 10000, 100000]) scale
      WHERE round(abs(x) / scale) = ANY (numbers)
        AND (round(abs(y) / scale) = ANY (numbers) OR round(abs(y + h) / scale) = ANY (numbers))
    ) AS fits
  FROM (
    SELECT *, ARRAY(
      SELECT m[1]::float8
      FROM regexp_matches(substring(path FROM '[^/]*$'), '[0-9]{1,15}', 'g') m
    ) AS numbers
    FROM (:tiles) t
  ) t
),
misnamed AS (
  SELECT path, place AS detail
  FROM named
  WHERE NOT fits AND (SELECT avg(fits::int) FROM named) >= 0.75
  UNION
  SELECT path, min(warning)
  FROM elevation_dataset_file_meta, unnest(warnings) warning
  WHERE dataset_id = @dataset AND warning LIKE 'its name says%'
  GROUP BY path
)
SELECT 'name' AS code, path, min(detail) AS detail
FROM misnamed
GROUP BY path
