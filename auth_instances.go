package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// noteInstance renews the lease of this instance, with the fingerprints of its keys. It returns an
// error unless this instance and all other living ones know each other's signing key: one would
// refuse the tokens of another.
func noteInstance(ctx context.Context, db *pgxpool.Pool, id string, ring *keyring, life time.Duration) error {
	const others = `
		SELECT DISTINCT ON (id)
			signer,
			fingerprints
		FROM instances
		WHERE id <> $1
			AND live_until > now()
		ORDER BY id, seen_at DESC`
	const note = `
		INSERT INTO instances AS i (
			id,
			signer,
			fingerprints,
			seen_at,
			alive_since,
			live_until
		)
		VALUES (
			$1,
			$2,
			$3,
			now(),
			now(),
			now() + $4::interval
		)
		ON CONFLICT (id, signer) DO UPDATE
		SET fingerprints = excluded.fingerprints,
			seen_at = now(),
			live_until = excluded.live_until,
			alive_since = CASE WHEN i.live_until < now() THEN now() ELSE i.alive_since END`

	ours := ring.fingerprints()
	return inTransaction(ctx, db, func(tx pgx.Tx) error {
		if err := advisoryLock(ctx, tx, lockKeys); err != nil {
			return err
		}

		living, err := collect[struct {
			Signer       string
			Fingerprints []string
		}](ctx, tx, "read instances", others, id)
		if err != nil {
			return err
		}

		for _, other := range living {
			if !slices.Contains(other.Fingerprints, ours[0]) {
				return fmt.Errorf("compare keys: the signing key %s is not known to another instance that runs: "+
					"add it there first (cairn keys add, then promote)", ring.keys[0].id)
			}

			if !slices.Contains(ours, other.Signer) {
				return errors.New("compare keys: another running instance signs with a key that is unknown here: " +
					"copy its key file")
			}
		}

		_, err = execute(ctx, tx, "note instance", note, id, ours[0], ours, life)
		return err
	})
}
