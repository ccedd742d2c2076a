-- The queries of the folder report, by name. :tiles and :grid_tiles stand for the queries of these names. A query for
-- findings returns code, path, detail and the total of the code, at most 20 rows of each code, in the order of codes.

-- query tiles
-- The rasters of the dataset $1 whose edges are parallel to the axes of their CRS. Sizes too large or too small to compute
-- with are left out.
SELECT *
FROM (
  SELECT path, coalesce(crs, crs_name, '') AS crs, to_char(abs(transform[5]), '9.99999EEEE') AS pixel,
    abs(transform[1]) AS dx, abs(transform[5]) AS dy,
    CASE WHEN abs(native_bbox[1]) < 1e-12 THEN 0 ELSE native_bbox[1] END AS x,
    CASE WHEN abs(native_bbox[2]) < 1e-12 THEN 0 ELSE native_bbox[2] END AS y,
    native_bbox[3] - native_bbox[1] AS w, native_bbox[4] - native_bbox[2] AS h
  FROM elevation_dataset_file_meta
  WHERE dataset_id = $1 AND native_bbox IS NOT NULL AND transform[2] = 0 AND transform[4] = 0
    AND greatest(abs(native_bbox[1]), abs(native_bbox[2]), abs(native_bbox[3]), abs(native_bbox[4])) < 1e15
) t
WHERE least(dx, dy, w, h) > 1e-12

-- query grid_tiles
-- The tiles of the grid of CRS $2 and pixel height $3, with origin $4, $5 and steps $6, $7. A tile covers the cell around
-- its centre, and every cell whose centre it holds. A raster larger than 64 cells is not a tile.
SELECT *,
  least(floor(u + uw / 2), ceil(u - 0.49))::bigint AS column_from, greatest(floor(u + uw / 2), floor(u + uw - 0.51))::bigint AS column_to,
  least(floor(v + vh / 2), ceil(v - 0.49))::bigint AS row_from, greatest(floor(v + vh / 2), floor(v + vh - 0.51))::bigint AS row_to,
  (u - round(u)) * $6::float8 / dx AS off_x, (v - round(v)) * $7::float8 / dy AS off_y
FROM (SELECT *, (x - $4) / $6 AS u, (y - $5) / $7 AS v, w / $6 AS uw, h / $7 AS vh FROM (:tiles) t WHERE crs = $2 AND pixel = $3) t
WHERE w < 64 * $6 AND h < 64 * $7

-- query groups
-- The tiles by CRS and pixel, and the median tile.
SELECT crs, pixel, count(*) AS tiles, min(dx) AS dx, min(dy) AS dy, min(x) AS x, min(y) AS y,
  percentile_disc(0.5) WITHIN GROUP (ORDER BY w) AS east, percentile_disc(0.5) WITHIN GROUP (ORDER BY h) AS north
FROM (:tiles) t
GROUP BY crs, pixel
HAVING count(*) >= 3
ORDER BY tiles DESC, crs, pixel
LIMIT 20

-- query step
-- The median step from a tile to the next one in its row, and in its column.
SELECT
  coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY east) FILTER (WHERE east BETWEEN $6::float8 / 2 AND $6 * 1.001), $6),
  coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY north) FILTER (WHERE north BETWEEN $7::float8 / 2 AND $7 * 1.001), $7)
FROM (
  SELECT
    lead(x) OVER (PARTITION BY round((y - $5::float8) / $7::float8) ORDER BY x) - x AS east,
    lead(y) OVER (PARTITION BY round((x - $4::float8) / $6::float8) ORDER BY y) - y AS north
  FROM (:tiles) t
  WHERE crs = $2 AND pixel = $3
) t

-- query origin
-- The median offset of tiles from the grid, as its new origin.
SELECT
  percentile_disc(0.5) WITHIN GROUP (ORDER BY x - $6::float8 * round((x - $4::float8) / $6)),
  percentile_disc(0.5) WITHIN GROUP (ORDER BY y - $7::float8 * round((y - $5::float8) / $7))
FROM (:tiles) t
WHERE crs = $2 AND pixel = $3

-- query cells
-- The runs of cells with a tile. In a run, column minus rank is constant.
SELECT row, min(c) AS from, max(c) AS to
FROM (
  SELECT row, c, c - row_number() OVER (PARTITION BY row ORDER BY c) AS run
  FROM (
    SELECT DISTINCT r AS row, c
    FROM (:grid_tiles) t, generate_series(row_from, row_to) r, generate_series(column_from, column_to) c
  ) cells
) cells
GROUP BY row, run
ORDER BY row, min(c)

-- query unread
-- Files that cannot be read, unsupported ones with the extension of readable ones, and files without an extent.
SELECT code, path, detail, total
FROM (
  SELECT *, count(*) OVER (PARTITION BY code) AS total, row_number() OVER (PARTITION BY code ORDER BY path) AS nth
  FROM (
    SELECT path, coalesce(reason, status) AS detail,
      CASE WHEN status IN ('no_bbox', 'no_georef') THEN 'no_extent' ELSE 'unreadable' END AS code
    FROM elevation_dataset_file_meta
    WHERE dataset_id = $1 AND status <> 'ok' AND (
      status IN ('corrupt', 'unreadable', 'no_bbox', 'no_georef')
      OR status = 'unsupported' AND lower(substring(path FROM '[.][^./]*$')) IN (
        SELECT lower(substring(path FROM '[.][^./]*$'))
        FROM elevation_dataset_file_meta
        WHERE dataset_id = $1 AND status = 'ok'
      )
    )
  ) f
) f
WHERE nth <= 20
ORDER BY code DESC, path

-- query duplicates
-- Tiles of the same extent, to a tenth of a pixel, and the same size in pixels.
SELECT 'duplicate' AS code, path, 'the same as ' || first AS detail, count(*) OVER () AS total
FROM (
  SELECT path, min(path) OVER (PARTITION BY crs, pixel, round(x / dx * 10), round(y / dy * 10), round(w / dx), round(h / dy)) AS first
  FROM (:tiles) t
) t
WHERE path <> first
ORDER BY path
LIMIT 20

-- query overlaps
-- Tiles that share a cell, and some area, with another tile.
SELECT 'overlap' AS code, path, format('column %s, row %s of its grid, as %s', c, r, first) AS detail, count(*) OVER () AS total
FROM (
  SELECT *, first_value(path) OVER cell AS first, first_value(ARRAY[x, y, x + w, y + h]) OVER cell AS box
  FROM (:grid_tiles) t, generate_series(row_from, row_to) r, generate_series(column_from, column_to) c
  WINDOW cell AS (PARTITION BY r, c ORDER BY path)
) t
WHERE path <> first AND box <> ARRAY[x, y, x + w, y + h]
  AND x + dx / 2 < box[3] AND x + w - dx / 2 > box[1] AND y + dy / 2 < box[4] AND y + h - dy / 2 > box[2]
ORDER BY path, r, c
LIMIT 20

-- query seams
-- Tiles whose offset from the grid is not a whole number of pixels.
SELECT 'seam' AS code, path, format('off by %s, %s pixels', round(off_x::numeric, 2), round(off_y::numeric, 2)) AS detail, count(*) OVER () AS total
FROM (:grid_tiles) t
WHERE abs(off_x - round(off_x)) > 0.05 OR abs(off_y - round(off_y)) > 0.05
ORDER BY path
LIMIT 20

-- query odd
-- Files with an attribute that differs from the most common value.
WITH attributes AS NOT MATERIALIZED (
  SELECT path, code, coalesce(value, 'none') AS value
  FROM elevation_dataset_file_meta, LATERAL (VALUES
    ('crs', coalesce(crs, crs_name)), ('resolution', ltrim(to_char(abs(transform[5]), '9.99999EEEE'))),
    ('sample_type', sample_type), ('nodata', nodata), ('vertical_crs', vertical_crs)
  ) v (code, value)
  WHERE dataset_id = $1 AND native_bbox IS NOT NULL
),
usual AS (
  SELECT DISTINCT ON (code) code, value AS usual
  FROM attributes
  GROUP BY code, value
  ORDER BY code, count(*) DESC, value
)
SELECT code, path, value || ' where ' || usual || ' is usual' AS detail, total
FROM (
  SELECT *, count(*) OVER (PARTITION BY code) AS total, row_number() OVER (PARTITION BY code ORDER BY path) AS nth
  FROM attributes
  JOIN usual USING (code)
  WHERE value <> usual
) a
WHERE nth <= 20
ORDER BY code, path

-- query names
-- If at least three quarters of the names hold the coordinates of the lower or upper left corner, in units, kilometres, 10
-- or 100 km: the other files. Also files with the reader's warning about their name.
WITH named AS MATERIALIZED (
  SELECT path, format('at %s, %s', x, y) AS place, EXISTS (
    SELECT
    FROM unnest(ARRAY[1, 1000, 10000, 100000]) scale
    WHERE round(abs(x) / scale) = ANY (numbers) AND (round(abs(y) / scale) = ANY (numbers) OR round(abs(y + h) / scale) = ANY (numbers))
  ) AS fits
  FROM (
    SELECT *, ARRAY(SELECT m[1]::float8 FROM regexp_matches(substring(path FROM '[^/]*$'), '[0-9]{1,15}', 'g') m) AS numbers
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
  WHERE dataset_id = $1 AND warning LIKE 'its name says%'
  GROUP BY path
)
SELECT 'name' AS code, path, min(detail) AS detail, count(*) OVER () AS total
FROM misnamed
GROUP BY path
ORDER BY path
LIMIT 20
