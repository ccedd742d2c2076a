-- The tables of announcements, datasets and analyses. Each migration continues the one of the same
-- number in schema.sql.

-- migration 1: version 0.2.0

-- Announcements. A message is shown from publish_at to expires_at, unless it is retracted. It is
-- for everybody or, with role_ids, for the users who hold one of these roles now; an empty array is
-- for nobody. Users who joined after publish_at see it only with include_new_users. The author's
-- name outlives the account.
CREATE TABLE system_messages (
  id                bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  title             text        NOT NULL,
  body              text        NOT NULL,
  severity          text        NOT NULL,
  publish_at        timestamptz NOT NULL,
  expires_at        timestamptz,
  retracted_at      timestamptz,
  role_ids          bigint[],
  include_new_users boolean     NOT NULL DEFAULT false,
  author_id         uuid        REFERENCES users ON DELETE SET NULL,
  author            text        NOT NULL,
  created_at        timestamptz NOT NULL DEFAULT now(),
  updated_at        timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT system_messages_severity_check CHECK (severity IN ('info', 'warning', 'critical'))
);
CREATE INDEX system_messages_publish_at_id_idx ON system_messages (publish_at, id);
CREATE INDEX system_messages_author_id_idx ON system_messages (author_id);

-- Read messages: every message up to the user's watermark, and one row for each message above it.
CREATE TABLE system_message_watermarks (
  user_id    uuid        PRIMARY KEY REFERENCES users ON DELETE CASCADE,
  publish_at timestamptz NOT NULL,
  message_id bigint      NOT NULL
);
CREATE INDEX system_message_watermarks_publish_at_idx ON system_message_watermarks (publish_at);
CREATE TABLE system_message_reads (
  user_id    uuid        NOT NULL REFERENCES users ON DELETE CASCADE,
  message_id bigint      NOT NULL REFERENCES system_messages ON DELETE CASCADE,
  read_at    timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (user_id, message_id)
);
CREATE INDEX system_message_reads_message_id_idx ON system_message_reads (message_id);

-- A directory of elevation files. path is relative to the first dataset root, or absolute.
CREATE TABLE datasets (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name        text        COLLATE "C" NOT NULL,
  path        text        COLLATE "C" NOT NULL,
  description text        NOT NULL DEFAULT '',
  created_at  timestamptz NOT NULL DEFAULT now(),
  updated_at  timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT datasets_name_key UNIQUE (name),
  CONSTRAINT datasets_path_key UNIQUE (path)
);

-- One file of a dataset. The arrays are transform [a b c d e f], native_bbox [minx miny maxx maxy],
-- bbox [west south east north]. A file is not read again while size, time, sidecars (a checksum of
-- the files that belong to it) and reader_version are the same. reader_version is 0 if the file had
-- just been written, or is not a regular file: it is read again next time.
CREATE TABLE elevation_dataset_file_meta (
  id              bigint           GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  dataset_id      bigint           NOT NULL REFERENCES datasets ON DELETE CASCADE,
  path            text             COLLATE "C" NOT NULL,
  size_bytes      bigint           NOT NULL,
  modified_ns     bigint           NOT NULL, -- nanoseconds since 1970
  sidecars        bigint           NOT NULL DEFAULT 0,
  reader_version  integer          NOT NULL DEFAULT 0,
  format          text,
  status          text             NOT NULL,
  reason          text,
  width           bigint,
  height          bigint,
  bands           bigint,
  sample_type     text,
  nodata          text,
  pixel_is        text,
  transform       double precision[],
  native_bbox     double precision[],
  crs             text,
  crs_name        text,
  vertical_crs    text,
  bbox            double precision[],
  bbox_accuracy_m double precision,
  resolution_m    double precision,
  source          text,
  warnings        text[]           NOT NULL,
  analyzed_at     timestamptz      NOT NULL,
  CONSTRAINT elevation_dataset_file_meta_path_key UNIQUE (dataset_id, path),
  CONSTRAINT elevation_dataset_file_meta_status_check CHECK (status IN
    ('ok', 'no_bbox', 'no_georef', 'sidecar', 'unsupported', 'corrupt', 'unreadable')),
  CONSTRAINT elevation_dataset_file_meta_ok_check CHECK
    ((status = 'ok') = (bbox IS NOT NULL) AND (bbox IS NULL OR native_bbox IS NOT NULL))
);

-- A file's bbox as a box in degrees that is not cut at 180°: one that crosses it ends east of 180.
CREATE FUNCTION degrees_box(bbox double precision[]) RETURNS box LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT box(point(bbox[1], bbox[2]), point(bbox[3] + CASE WHEN bbox[3] < bbox[1] THEN 360 ELSE 0 END, bbox[4]))
$$;
CREATE INDEX elevation_dataset_file_meta_box_idx ON elevation_dataset_file_meta
  USING gist (dataset_id, degrees_box(bbox)) WHERE bbox IS NOT NULL;
CREATE INDEX elevation_dataset_file_meta_status_idx ON elevation_dataset_file_meta (dataset_id, status, path)
  WHERE status <> 'ok'; -- few files are not ok

-- One instance at a time walks the directory of an analysis and writes chunks; walked_to is the last
-- path written. The analysis has ended when the walk has ended and chunks_left is 0. walker_token is
-- a fencing token: it changes with each claim, so that a holder whose lease expired can store
-- nothing. blind lists the instances that do not see the directory. expected is the number of files
-- that the previous analysis found. failures counts walks that the database refused.
CREATE TABLE analyses (
  id           bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  dataset_id   bigint      NOT NULL REFERENCES datasets ON DELETE CASCADE,
  state        text        NOT NULL DEFAULT 'queued',
  force        boolean     NOT NULL,
  failure_code text,
  failure      text,
  requested_by text        NOT NULL,
  queued_at    timestamptz NOT NULL DEFAULT now(),
  started_at   timestamptz,
  finished_at  timestamptz,
  walker       text,
  walker_token uuid,
  walked_to    text        COLLATE "C" NOT NULL DEFAULT '',
  chunks_left  bigint      NOT NULL DEFAULT 0,
  failures     integer     NOT NULL DEFAULT 0,
  blind        text[]      NOT NULL DEFAULT '{}',
  expected     bigint      NOT NULL DEFAULT 0,
  total        bigint      NOT NULL DEFAULT 0,
  added        bigint      NOT NULL DEFAULT 0,
  changed      bigint      NOT NULL DEFAULT 0,
  unchanged    bigint      NOT NULL DEFAULT 0,
  removed      bigint      NOT NULL DEFAULT 0,
  failed       bigint      NOT NULL DEFAULT 0,
  warnings     text[]      NOT NULL DEFAULT '{}',
  CONSTRAINT analyses_state_check CHECK (state IN
    ('queued', 'walking', 'reading', 'succeeded', 'failed', 'canceled')),
  CONSTRAINT analyses_finished_check CHECK
    ((finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'canceled')))
);
CREATE INDEX analyses_dataset_id_id_idx ON analyses (dataset_id, id);
CREATE UNIQUE INDEX analyses_running_key ON analyses (dataset_id) WHERE finished_at IS NULL;

-- A chunk is the interval (from_path, to_path] of a dataset's paths with every file that the walk
-- found in it, as arrays of one length. A null to_path means the end. token is a fencing token;
-- deaths counts instances that died while they held the chunk.
CREATE TABLE analysis_chunks (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  analysis_id bigint      NOT NULL REFERENCES analyses ON DELETE CASCADE,
  from_path   text        COLLATE "C" NOT NULL,
  to_path     text        COLLATE "C",
  paths       text[]      COLLATE "C" NOT NULL DEFAULT '{}',
  sizes       bigint[]    NOT NULL DEFAULT '{}',
  modified    bigint[]    NOT NULL DEFAULT '{}',
  sidecars    bigint[]    NOT NULL DEFAULT '{}',
  reader      text,
  token       uuid,
  deaths      integer     NOT NULL DEFAULT 0,
  failures    integer     NOT NULL DEFAULT 0
);
CREATE INDEX analysis_chunks_analysis_id_idx ON analysis_chunks (analysis_id);
CREATE INDEX analysis_chunks_failures_id_idx ON analysis_chunks (failures, id);
ALTER TABLE analysis_chunks -- not worth compressing: read once
  ALTER COLUMN paths SET STORAGE EXTERNAL,
  ALTER COLUMN sizes SET STORAGE EXTERNAL,
  ALTER COLUMN modified SET STORAGE EXTERNAL,
  ALTER COLUMN sidecars SET STORAGE EXTERNAL;

-- The files that an analysis found added, changed and removed: a row for each chunk that had any.
CREATE TABLE analysis_changes (
  analysis_id bigint NOT NULL REFERENCES analyses ON DELETE CASCADE,
  from_path   text   COLLATE "C" NOT NULL,
  added       text[] COLLATE "C" NOT NULL,
  changed     text[] COLLATE "C" NOT NULL,
  removed     text[] COLLATE "C" NOT NULL,
  PRIMARY KEY (analysis_id, from_path)
);

-- migration 2: version 1.0.0

-- changed_ns is a file's st_ctime in nanoseconds since 1970, which no program can set. Rows of 0.2.0
-- have 0, so their files are read once more.
ALTER TABLE elevation_dataset_file_meta ADD COLUMN changed_ns bigint NOT NULL DEFAULT 0;
ALTER TABLE analysis_chunks ADD COLUMN changed bigint[] NOT NULL DEFAULT '{}';
ALTER TABLE analysis_chunks ALTER COLUMN changed SET STORAGE EXTERNAL;

-- A stored chunk keeps the files that its holder did not find, for a second look: files that the walk
-- found, and files that only have a row (their size is null). missed_by lists the instances that did
-- not find them. The second look begins when no other chunk is left; the last instance that may look
-- removes the rows. missed_at is when an instance missed the files or, at first, when the second look
-- began. missing counts the rows whose files neither the walk nor the first look found, without those
-- that an empty directory or a failed look keeps. It is 0 after the second looks have begun.
ALTER TABLE analyses ADD COLUMN missing bigint NOT NULL DEFAULT 0;
ALTER TABLE analysis_chunks
  ADD COLUMN missed_by text[] NOT NULL DEFAULT '{}',
  ADD COLUMN missed_at timestamptz;

-- Findings of a dataset's report that somebody has accepted. path is a file, or the name of a missing
-- tile; null accepts every finding of the code.
CREATE TABLE accepted_findings (
  id          bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  dataset_id  bigint      NOT NULL REFERENCES datasets ON DELETE CASCADE,
  code        text        COLLATE "C" NOT NULL,
  path        text        COLLATE "C",
  note        text        NOT NULL,
  accepted_by text        NOT NULL,
  accepted_at timestamptz NOT NULL DEFAULT now(),
  CONSTRAINT accepted_findings_key UNIQUE NULLS NOT DISTINCT (dataset_id, code, path)
);

-- Indexes for lists of files by resolution and by time, and for lists of files with warnings.
CREATE INDEX elevation_dataset_file_meta_resolution_idx ON elevation_dataset_file_meta
  (dataset_id, (-coalesce(resolution_m, 0)), path);
CREATE INDEX elevation_dataset_file_meta_modified_idx ON elevation_dataset_file_meta
  (dataset_id, ((-modified_ns)::double precision), path);
CREATE INDEX elevation_dataset_file_meta_warnings_idx ON elevation_dataset_file_meta (dataset_id, path)
  WHERE warnings <> '{}';

-- A CRS without an EPSG code whose projection and parameters are known: see crsDefinition.text.
ALTER TABLE elevation_dataset_file_meta ADD COLUMN crs_definition text;

-- Whether a GeoTIFF is cloud-optimized; null for other formats, and for rows that have to be read again.
ALTER TABLE elevation_dataset_file_meta ADD COLUMN cog boolean;

-- migration 3: version 1.0.0, second step

-- Findings that were accepted as seams are those of misaligned tiles. What was accepted as a duplicate
-- may be an overlap now, because duplicates have the same size in bytes.
UPDATE accepted_findings SET code = 'misaligned' WHERE code = 'seam';
INSERT INTO accepted_findings (dataset_id, code, path, note, accepted_by, accepted_at)
  SELECT dataset_id, 'overlap', path, note, accepted_by, accepted_at
  FROM accepted_findings
  WHERE code = 'duplicate'
  ORDER BY id
  ON CONFLICT DO NOTHING;

-- migration 4: version 1.0.0, third step

-- One instance owns an analysis. It compares the directory with the rows, both in the order of
-- paths, from the beginning. What a former owner has stored is unchanged then. The steps are merge,
-- look (for the files of rows that the merge did not find), remove, and check (the rows that are
-- left). Of an analysis with checks_only, check is the only step. owner_token is a fencing token: it
-- changes with each claim, so that an owner whose lease expired can store nothing. deaths counts
-- owners that died in this step. After the first death in the merge, files are read one by one:
-- suspect is the file in hand, with its size and times, and deaths counts only owners that died over
-- it. missed_by lists the instances that did not find the files of the candidates, and missed_at is
-- when the last of them looked. blind_at is when the last instance found that it does not see the
-- directory. expected is the number of files that the previous analysis found.
DELETE FROM analysis_changes WHERE analysis_id IN (SELECT id FROM analyses WHERE finished_at IS NULL);
DROP TABLE analysis_chunks;
ALTER TABLE analyses
  DROP COLUMN walked_to,
  DROP COLUMN chunks_left,
  DROP COLUMN unchanged,
  DROP COLUMN missing,
  DROP CONSTRAINT analyses_state_check,
  ADD COLUMN step        text        NOT NULL DEFAULT 'merge',
  ADD COLUMN deaths      integer     NOT NULL DEFAULT 0,
  ADD COLUMN suspect     text,
  ADD COLUMN missed_by   text[]      NOT NULL DEFAULT '{}',
  ADD COLUMN missed_at   timestamptz,
  ADD COLUMN blind_at    timestamptz,
  ADD COLUMN checks_only boolean     NOT NULL DEFAULT false;
ALTER TABLE analyses RENAME COLUMN walker TO owner;
ALTER TABLE analyses RENAME COLUMN walker_token TO owner_token;
UPDATE analyses
  SET state = 'queued', owner = NULL, owner_token = NULL, total = 0, added = 0, changed = 0, removed = 0,
    failed = 0
  WHERE finished_at IS NULL;
ALTER TABLE analyses ADD CONSTRAINT analyses_state_check CHECK (state IN
  ('queued', 'reading', 'checking', 'succeeded', 'failed', 'canceled'));

-- The files that an analysis found added, changed and removed.
ALTER TABLE analysis_changes RENAME TO former_changes;
ALTER TABLE former_changes RENAME CONSTRAINT analysis_changes_pkey TO former_changes_pkey;
CREATE TABLE analysis_changes (
  analysis_id bigint NOT NULL REFERENCES analyses ON DELETE CASCADE,
  path        text   COLLATE "C" NOT NULL,
  change      text   NOT NULL,
  CONSTRAINT analysis_changes_change_check CHECK (change IN ('added', 'changed', 'removed')),
  PRIMARY KEY (analysis_id, path)
);
INSERT INTO analysis_changes (analysis_id, path, change)
  SELECT analysis_id, unnest(added), 'added' FROM former_changes
  UNION ALL
  SELECT analysis_id, unnest(changed), 'changed' FROM former_changes
  UNION ALL
  SELECT analysis_id, unnest(removed), 'removed' FROM former_changes
  ON CONFLICT DO NOTHING;
DROP TABLE former_changes;

-- The rows that an analysis did not find a file for. They go at its end, if their files are gone then.
-- found_by is the instance that found the file after another had missed it: the file may have come
-- back, so the others look again.
CREATE TABLE analysis_candidates (
  analysis_id bigint NOT NULL REFERENCES analyses ON DELETE CASCADE,
  path        text   COLLATE "C" NOT NULL,
  found_by    text,
  PRIMARY KEY (analysis_id, path)
);

-- The analysis that added the row, and the one that last read the file; 0 if that was before this
-- migration.
ALTER TABLE elevation_dataset_file_meta
  ADD COLUMN added_in bigint NOT NULL DEFAULT 0,
  ADD COLUMN read_in  bigint NOT NULL DEFAULT 0;

-- Further fields of a file's header: the unit of its heights, which are sample * scale + "offset" (null:
-- not stated); the compression of a TIFF, and the bytes of its first image.
ALTER TABLE elevation_dataset_file_meta
  ADD COLUMN unit        text,
  ADD COLUMN scale       double precision,
  ADD COLUMN "offset"    double precision,
  ADD COLUMN compression text,
  ADD COLUMN data_bytes  bigint;

-- The expectation of a dataset, in JSON: it says how its files should be.
CREATE TABLE dataset_expectations (
  dataset_id  bigint      PRIMARY KEY REFERENCES datasets ON DELETE CASCADE,
  expectation json        NOT NULL,
  updated_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The results of the checks of a dataset, in this table and the next three. The last transaction of
-- an analysis replaces them. summary is a resultSummary in JSON, and a picture is a coverage.
-- is_first is true until a second analysis has checked the dataset. expected_at is updated_at of the
-- expectation with which the files were compared. checks_version is that of the checks: see
-- checksVersion.
CREATE TABLE dataset_results (
  dataset_id        bigint      PRIMARY KEY REFERENCES datasets ON DELETE CASCADE,
  analysis_id       bigint      NOT NULL,
  is_first          boolean     NOT NULL,
  checks_version    integer     NOT NULL,
  expected_at       timestamptz,
  analyzed_at       timestamptz NOT NULL,
  checked_at        timestamptz NOT NULL DEFAULT now(),
  summary           jsonb       NOT NULL,
  picture           jsonb       NOT NULL,
  picture_by_status jsonb       NOT NULL
);

-- The findings. Of each code the first 10,000 are stored. path is a file, a folder or the name of a
-- missing tile. first_seen is the first of the successive analyses that found it.
CREATE TABLE dataset_findings (
  dataset_id  bigint  NOT NULL REFERENCES datasets ON DELETE CASCADE,
  code        text    COLLATE "C" NOT NULL,
  path        text    COLLATE "C" NOT NULL,
  folder      text    COLLATE "C" NOT NULL,
  detail      text    NOT NULL,
  tile        jsonb,
  first_seen  bigint  NOT NULL,
  is_accepted boolean NOT NULL DEFAULT false,
  PRIMARY KEY (dataset_id, code, path)
);

-- Runs of missing tiles in a row of a grid, from one column to another, both included. grid is the
-- index of the grid in the summary.
CREATE TABLE dataset_gaps (
  dataset_id   bigint  NOT NULL REFERENCES datasets ON DELETE CASCADE,
  grid         integer NOT NULL,
  row          bigint  NOT NULL,
  first_column bigint  NOT NULL,
  last_column  bigint  NOT NULL,
  PRIMARY KEY (dataset_id, grid, row, first_column)
);

-- The numbers of findings in each folder. They are exact: they count also those that are not stored.
CREATE TABLE dataset_finding_totals (
  dataset_id bigint NOT NULL REFERENCES datasets ON DELETE CASCADE,
  code       text   COLLATE "C" NOT NULL,
  folder     text   COLLATE "C" NOT NULL,
  total      bigint NOT NULL,
  accepted   bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (dataset_id, code, folder)
);

-- A dataset that a former version has analysed has no results yet: its rows are checked.
INSERT INTO analyses (dataset_id, force, requested_by, step, checks_only, total)
  SELECT id, false, 'cairn', 'check', true,
    (SELECT count(*) FROM elevation_dataset_file_meta WHERE dataset_id = d.id)
  FROM datasets d
  WHERE EXISTS (SELECT FROM analyses WHERE dataset_id = d.id AND state = 'succeeded')
    AND NOT EXISTS (SELECT FROM analyses WHERE dataset_id = d.id AND finished_at IS NULL);

-- migration 5: version 1.0.0, fourth step

-- The answers to forms of pages, so that a form that arrives twice acts once: see doOnce. id is a hash
-- of the form with its random text. answer is encrypted under a key that is stored nowhere; it is null
-- while the first request is at work.
CREATE TABLE form_answers (
  id         bytea       PRIMARY KEY,
  session_id uuid        NOT NULL REFERENCES sessions ON DELETE CASCADE,
  answer     bytea,
  created_at timestamptz NOT NULL DEFAULT now(),
  expires_at timestamptz NOT NULL
);
CREATE INDEX form_answers_session_id_idx ON form_answers (session_id, created_at);

-- migration 6: version 1.0.0, fifth step

-- The permission that is needed to see a dataset, besides dataset.read; empty: none.
ALTER TABLE datasets ADD COLUMN requires text COLLATE "C" NOT NULL DEFAULT '';

-- The description of a dataset by its team, in JSON: see datasetAbout.
ALTER TABLE datasets ADD COLUMN about jsonb NOT NULL DEFAULT '{"providers": [], "keywords": []}';

-- migration 7: version 1.0.0, sixth step

-- An analysis with checksums has one more step, contents: it reads the files whose checksums are
-- listed. It has read bytes_read bytes of bytes_expected since contents_at.
ALTER TABLE analyses
  ADD COLUMN checksums      boolean NOT NULL DEFAULT false,
  ADD COLUMN bytes_read     bigint  NOT NULL DEFAULT 0,
  ADD COLUMN bytes_expected bigint,
  ADD COLUMN contents_at    timestamptz;

-- The digests of a file, in hex; null: not known. They go with the row if the file changes.
-- content_fault says why the content could not be read, or which line of a list is wrong. is_list:
-- the file is a list of checksums, and listed_checksums has its lines.
ALTER TABLE elevation_dataset_file_meta
  ADD COLUMN md5           text,
  ADD COLUMN sha256        text,
  ADD COLUMN content_fault text,
  ADD COLUMN is_list       boolean NOT NULL DEFAULT false;

-- The lines of lists of checksums. path is the path of the file that a line names. Lines count only
-- while the row of their list has is_list.
CREATE TABLE listed_checksums (
  dataset_id bigint  NOT NULL REFERENCES datasets ON DELETE CASCADE,
  list       text    COLLATE "C" NOT NULL,
  line       integer NOT NULL,
  path       text    COLLATE "C" NOT NULL,
  algorithm  text    NOT NULL,
  digest     text    NOT NULL,
  PRIMARY KEY (dataset_id, list, line),
  CONSTRAINT listed_checksums_algorithm_check CHECK (algorithm IN ('MD5', 'SHA256'))
);
CREATE INDEX listed_checksums_path_idx ON listed_checksums (dataset_id, path);

-- migration 8: version 1.0.0, seventh step

-- The CRSs of files that name none are set in datasets.about. crs_version rises with each change of
-- them. dataset_results has the number with which the rows were placed when they were checked.
ALTER TABLE datasets
  ALTER COLUMN about SET DEFAULT '{"providers": [], "keywords": [], "folder_crs": []}',
  ADD COLUMN crs_version integer NOT NULL DEFAULT 0;
UPDATE datasets SET about = about || '{"folder_crs": []}';
ALTER TABLE dataset_results ADD COLUMN crs_version integer NOT NULL DEFAULT 0;

-- lacks_crs: the file names no CRS. set_crs and set_vertical_crs are the codes that were set for it,
-- and that crs and vertical_crs have too; empty: none. With set_crs, only the first own_warnings of the
-- warnings are about the file itself.
ALTER TABLE elevation_dataset_file_meta
  ADD COLUMN lacks_crs        boolean NOT NULL DEFAULT false,
  ADD COLUMN set_crs          text    NOT NULL DEFAULT '',
  ADD COLUMN set_vertical_crs text    NOT NULL DEFAULT '',
  ADD COLUMN own_warnings     integer NOT NULL DEFAULT 0;
UPDATE elevation_dataset_file_meta
  SET lacks_crs = true
  WHERE status = 'no_bbox' AND reason LIKE 'the file does not name its CRS%';

-- migration 9: version 1.0.0, eighth step

-- Whether the end of an analysis is announced, if there is something new: none, draft or publish.
ALTER TABLE datasets
  ADD COLUMN notify text NOT NULL DEFAULT 'none',
  ADD CONSTRAINT datasets_notify_check CHECK (notify IN ('none', 'draft', 'publish'));

-- The dataset that a message is about. Only those who may see the dataset see the message. So a
-- message goes with its dataset.
ALTER TABLE system_messages ADD COLUMN dataset_id bigint REFERENCES datasets ON DELETE CASCADE;
CREATE INDEX system_messages_dataset_id_idx ON system_messages (dataset_id) WHERE dataset_id IS NOT NULL;

-- migration 10: version 1.0.0, ninth step

-- By how much the last checks found more than the checks before, for each code that then or now had
-- more findings than are stored: there first_seen does not tell which ones are new.
ALTER TABLE dataset_results ADD COLUMN risen jsonb NOT NULL DEFAULT '{}';

-- migration 11: version 1.0.0, tenth step

-- An analysis with heights reads the heights of the rasters in the step contents.
ALTER TABLE analyses ADD COLUMN heights boolean NOT NULL DEFAULT false;

-- What all heights of a file have in common, in JSON: a fileHeights; null: not known. It goes with the
-- row if the file changes.
ALTER TABLE elevation_dataset_file_meta ADD COLUMN heights jsonb;

-- migration 12: version 1.0.0, eleventh step

-- This migration changes no table of the catalogue.
