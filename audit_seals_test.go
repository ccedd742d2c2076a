package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
)

// auditRows adds rows to the audit log.
func (ts *testServer) auditRows(n int) {
	ts.t.Helper()
	for i := range n {
		if err := audit(context.Background(), ts.db, operatorActor(), "test", fmt.Sprint("target:", i), nil, nil); err != nil {
			ts.t.Fatal(err)
		}
	}
}

// sealedUpTo waits until no row waits for its seal and the newest seal has this number.
func (ts *testServer) sealedUpTo(n int) {
	ts.t.Helper()
	waitFor(ts.t, fmt.Sprint("seal ", n), func() bool {
		return ts.queryInt(`SELECT count(*) FROM audit_unsealed`) == 0 && ts.queryInt(`SELECT coalesce(max(seq), 0) FROM audit_seals`) == n
	})
}

// sees waits until the service's log says something.
func (ts *testServer) sees(what string) {
	ts.t.Helper()
	waitFor(ts.t, what, func() bool { return strings.Contains(ts.log.String(), what) })
}

// cutTail truncates the seals after a number by hand, and makes their rows wait for seals again.
func (ts *testServer) cutTail(seq int) {
	ts.exec(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
	ts.exec(`WITH gone AS (DELETE FROM audit_seals WHERE seq > $1 RETURNING audit_id) INSERT INTO audit_unsealed SELECT audit_id FROM gone`, seq)
}

// changeSealed changes the row with the given seal, past the trigger that forbids it.
func (ts *testServer) changeSealed(seq int) {
	ts.exec(`ALTER TABLE audit_log DISABLE TRIGGER USER`)
	ts.exec(`UPDATE audit_log SET actor = 'nobody' WHERE id = (SELECT audit_id FROM audit_seals WHERE seq = $1)`, seq)
	ts.exec(`ALTER TABLE audit_log ENABLE TRIGGER USER`)
}

// verify runs "cairn audit verify" and returns what it prints and its exit status.
func (ts *testServer) verify(args ...string) (said string, status int) {
	ts.t.Helper()
	said, err := ts.command(append([]string{"audit", "verify"}, args...)...)
	return said, exitStatus(err)
}

// headOf returns the head that "cairn audit verify" has printed.
func headOf(said string) string {
	_, head, _ := strings.Cut(said, "head ")
	head, _, _ = strings.Cut(head, ",")
	return head
}

// breaks returns how many rows of the audit log tell of breaks.
func (ts *testServer) breaks() int {
	return ts.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'audit.break_found'`)
}

// brokenAt waits until one row tells of a break, whose seal has this number, and no row waits. Then it checks the metric
// and that "cairn audit verify" finds nothing new, but for somebody who kept a head from before.
func (ts *testServer) brokenAt(seq int, oldHead string) {
	ts.t.Helper()
	waitFor(ts.t, "the seal of a row that tells of a break", func() bool {
		return ts.queryInt(`SELECT count(*) FROM audit_unsealed`) == 0 && ts.queryInt(`SELECT count(*) FROM audit_seals s JOIN audit_log l ON l.id = s.audit_id
			WHERE l.action = 'audit.break_found' AND s.seq = $1`, seq) == 1
	})
	said, status := ts.verify()
	if status != 0 || ts.breaks() != 1 {
		ts.t.Errorf("status %d, %d breaks: %s", status, ts.breaks(), said)
	}
	if said, status := ts.verify("--head", oldHead); status != 3 {
		ts.t.Errorf("status %d with the old head: %s", status, said)
	}
	if said, status := ts.verify("--head", headOf(said)); status != 0 {
		ts.t.Errorf("status %d with the new head: %s", status, said)
	}
}

// remembers waits until the instance has stored the newest seal in its state directory.
func (ts *testServer) remembers(seq int) {
	ts.t.Helper()
	waitFor(ts.t, fmt.Sprint("an instance to remember seal ", seq), func() bool {
		head, _ := os.ReadFile(ts.operations.sealPath())
		return strings.HasPrefix(string(head), fmt.Sprint(seq, ":"))
	})
}

// cutRows deletes the rows with seals after a number, and the seals, by hand.
const cutRows = `
	ALTER TABLE audit_log DISABLE TRIGGER USER;
	ALTER TABLE audit_seals DISABLE TRIGGER USER;
	DELETE FROM audit_log WHERE id IN (SELECT audit_id FROM audit_seals WHERE seq > 8);
	DELETE FROM audit_seals WHERE seq > 8;
	ALTER TABLE audit_log ENABLE TRIGGER USER`

// TestCutEnd: two instances that have seen the newest seal notice that the end of the log was cut off, record it once and
// seal on.
func TestCutEnd(t *testing.T) {
	t.Parallel()
	one, two := startTwoServers(t)
	metrics := one.signIn("metrics", metricsRead)
	metric := func() string {
		for line := range strings.Lines(string(metrics.must(200, "GET", "/metrics", nil).body)) {
			if value, ok := strings.CutPrefix(line, "cairn_audit_breaks "); ok {
				return strings.TrimSpace(value)
			}
		}
		return "no metric"
	}
	one.auditRows(8)
	total := one.queryInt(`SELECT count(*) FROM audit_log`)
	one.sealedUpTo(total)
	one.remembers(total)
	two.remembers(total)
	said, _ := one.verify()
	check(t, "the metric", metric(), "0")

	change(t, one.env, cutRows)
	one.brokenAt(total+1, headOf(said))
	one.auditRows(1)
	one.sealedUpTo(total + 2)
	one.remembers(total + 2)
	two.remembers(total + 2)
	one.brokenAt(total+1, headOf(said))
	check(t, "the metric", metric(), "1")
	logged := strings.Count(one.log.String()+two.log.String(), "break of the audit log found")
	if want := fmt.Sprintf("the seals 9 to %d are missing", total); logged != 1 || !strings.Contains(one.log.String()+two.log.String(), want) {
		t.Errorf("%d errors in the log, want one with %q", logged, want)
	}
}

// TestCutBeforeStart: an instance remembers the newest seal in its state directory. So it notices when it starts that the
// end of the log was cut off while none ran, also if another instance made that seal.
func TestCutBeforeStart(t *testing.T) {
	t.Parallel()
	one, two := startTwoServers(t)
	one.stop()
	two.auditRows(9)
	total := two.queryInt(`SELECT count(*) FROM audit_log`)
	two.sealedUpTo(total)
	two.remembers(total)
	said, _ := two.verify()
	two.stop()
	change(t, two.env, cutRows)
	if said, status := two.verify(); status != 0 { // nothing in the database tells of it
		t.Error(said, status)
	}
	if said, status := two.verify("--head", headOf(said)); status != 3 {
		t.Error(said, status)
	}
	three := startServer(t, nil, two.env...)
	three.brokenAt(total+1, headOf(said))
}

// TestRestoreIsABreak: the rows that a restored backup lacks are noticed.
func TestRestoreIsABreak(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(5)
	ts.sealedUpTo(6)
	file := filepath.Join(t.TempDir(), "backup")
	if said, err := ts.command("backup", file); err != nil {
		t.Fatal(said, err)
	}
	ts.auditRows(5)
	ts.sealedUpTo(11)
	ts.remembers(11)
	said, _ := ts.verify()
	ts.stop()
	if said, err := ts.command("restore", file); err != nil {
		t.Fatal(said, err)
	}
	two := startServer(t, nil, ts.env...)
	two.brokenAt(12, headOf(said))
	two.sees("the seals 7 to 11 are missing")
}

// TestSealerIsNoOracle: rows that were changed and made to wait again by hand are sealed only after the row that tells of
// the break.
func TestSealerIsNoOracle(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	ts.remembers(9)
	said, _ := ts.verify()
	ts.changeSealed(5)
	ts.cutTail(3)
	ts.brokenAt(10, headOf(said))
	ts.sees("the seals 4 to 9 are missing")
	check(t, "numbers of lost seals that are used again", ts.queryInt(`SELECT count(*) FROM audit_seals WHERE seq BETWEEN 4 AND 9`), 0)
}

// TestForgedBreak: a row that says that a break is known, made by somebody without the key, hides no break, and neither
// does a real one that was altered. Cairn seals both, as it seals whatever is inserted.
func TestForgedBreak(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	change(t, ts.env, `ALTER TABLE audit_log DISABLE TRIGGER USER; DELETE FROM audit_log WHERE id = 3; ALTER TABLE audit_log ENABLE TRIGGER USER`)
	said, status := ts.verify()
	if status != 3 || ts.breaks() != 1 {
		t.Fatal(said, status)
	}

	// The attacker knows what the next finding will be, and has the note of the first.
	digest := sha256.Sum256([]byte("5 " + ts.sealMAC(5) + " \n"))
	finding := fmt.Sprintf("seals 5 to 5 (rows 5 to 5): the row is missing [%x]", digest[:16])
	for _, note := range []string{
		`jsonb_build_object('findings', jsonb_build_array($1::text), 'mac', encode(repeat('x', 32)::bytea, 'base64'))`,
		`jsonb_build_object('findings', jsonb_build_array($1::text), 'mac', (SELECT after -> 'mac' FROM audit_log WHERE action = 'audit.break_found' LIMIT 1))`,
		`jsonb_build_object('findings', (SELECT after -> 'findings' FROM audit_log WHERE action = 'audit.break_found' LIMIT 1) || to_jsonb($1::text))`,
		`jsonb_build_object('findings', $1::text, 'mac', 7)`,
		`to_jsonb($1::text)`,
		`nullif($1::text, $1)::jsonb`,
	} {
		ts.exec(`INSERT INTO audit_log (actor, credential, address, request_id, action, target, after)
			SELECT 'cairn', '', '', '', 'audit.break_found', 'audit', `+note, finding)
	}
	ts.sealedUpTo(16)
	if said, status := ts.verify(); status != 0 || ts.breaks() != 7 {
		t.Fatal(said, status)
	}
	change(t, ts.env, `ALTER TABLE audit_log DISABLE TRIGGER USER; DELETE FROM audit_log WHERE id = 5; ALTER TABLE audit_log ENABLE TRIGGER USER`)
	for _, want := range []int{3, 0} {
		if said, status := ts.verify(); status != want || !strings.Contains(said, finding) {
			t.Errorf("status %d, want %d: %s", status, want, said)
		}
	}
	check(t, "rows that tell of breaks", ts.breaks(), 8)
}

// sealMAC returns the MAC of a seal in hex.
func (ts *testServer) sealMAC(seq int) (mac string) {
	ts.t.Helper()
	if err := ts.db.QueryRow(ts.t.Context(), `SELECT encode(mac, 'hex') FROM audit_seals WHERE seq = $1`, seq).Scan(&mac); err != nil {
		ts.t.Fatal(err)
	}
	return mac
}

// TestBreakAgain: a row that is put back is whole again. If it is changed in another way later, that is a new break, and
// if it is changed in the same way, it is the known one.
func TestBreakAgain(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	for _, step := range []struct {
		actor          string
		status, breaks int
	}{
		{"nobody", 3, 1}, {"nobody", 0, 1}, {"operator", 0, 1}, {"nobody", 0, 1}, {"grace", 3, 2}, {"operator", 0, 2},
	} {
		change(t, ts.env, `ALTER TABLE audit_log DISABLE TRIGGER USER; UPDATE audit_log SET actor = '`+step.actor+`' WHERE id = 5; ALTER TABLE audit_log ENABLE TRIGGER USER`)
		if said, status := ts.verify(); status != step.status || ts.breaks() != step.breaks {
			t.Errorf("%s: got status %d and %d breaks, want %d and %d: %s", step.actor, status, ts.breaks(), step.status, step.breaks, said)
		}
	}
}

// TestBreakRowDeleted: a break whose row was deleted is reported again, and so is the deletion.
func TestBreakRowDeleted(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	ts.changeSealed(5)
	if said, status := ts.verify(); status != 3 {
		t.Fatal(said)
	}
	ts.sealedUpTo(10)
	change(t, ts.env, `ALTER TABLE audit_log DISABLE TRIGGER USER; DELETE FROM audit_log WHERE action = 'audit.break_found'; ALTER TABLE audit_log ENABLE TRIGGER USER`)
	said, status := ts.verify()
	if status != 3 || !strings.Contains(said, "seals 5 to 5 (rows 5 to 5)") || !strings.Contains(said, "seals 10 to 10 (rows 10 to 10): the row is missing") {
		t.Error(said, status)
	}
	if said, status := ts.verify(); status != 0 || ts.breaks() != 1 {
		t.Error(said, status)
	}
}

// TestForgedSeals: seals made by hand are found when the next rows are sealed. A seal for a row that waits does not keep
// others from being sealed.
func TestForgedSeals(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ harm, found string }{
		"a checkpoint": {`DELETE FROM audit_seals; INSERT INTO audit_seals SELECT 100, 100, '$kid', '\x00', '\x00'`,
			"seals 100 to 100 (rows 100 to 100): it is not a valid checkpoint"},
		"another last seal": {`UPDATE audit_seals SET mac = '\x00' WHERE seq = 9`, "seals 9 to 9 (rows 9 to 9): the row or the seal was changed"},
		"one more seal":     {`INSERT INTO audit_seals SELECT 10, 1000, '$kid', '\x00'`, "seals 10 to 10 (rows 1000 to 1000): the row is missing"},
		"a waiting row's seal": {`WITH added AS (
				INSERT INTO audit_log (actor, credential, address, request_id, action, target) VALUES ('root', '', '', '', 'a', '') RETURNING id
			) INSERT INTO audit_seals SELECT 10, id, '$kid', '\x00' FROM added`, "seals 10 to 10 (rows 10 to 10): the row or the seal was changed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ts := startServer(t, nil)
			ts.auditRows(8)
			ts.sealedUpTo(9)
			ts.remembers(9)
			kid := ts.keys.Load().keys[0].id
			change(t, ts.env, `ALTER TABLE audit_seals DISABLE TRIGGER USER; `+strings.ReplaceAll(test.harm, "$kid", kid))
			ts.auditRows(1)
			ts.sees("break of the audit log found")
			ts.sees(test.found)
			waitFor(t, "the seal of the last row", func() bool {
				return ts.queryInt(`SELECT count(*) FROM audit_seals WHERE audit_id = (SELECT max(id) FROM audit_log WHERE target = 'target:0')`) == 1
			})
		})
	}
}

// TestChosenPredecessor: somebody adds a seal by hand, of no known key and with the MAC of an old seal. So a row of theirs
// is sealed as the next after that old seal. If they then remove all between the two, the numbers tell.
func TestChosenPredecessor(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	ts.remembers(9)
	change(t, ts.env, `
		ALTER TABLE audit_log DISABLE TRIGGER USER;
		ALTER TABLE audit_seals DISABLE TRIGGER USER;
		INSERT INTO audit_seals SELECT 10, 1000, 'nobody', mac FROM audit_seals WHERE seq = 4;
		ALTER TABLE audit_log ENABLE TRIGGER USER`)
	ts.auditRows(1)
	ts.sealedUpTo(11)
	change(t, ts.env, `
		ALTER TABLE audit_log DISABLE TRIGGER USER;
		DELETE FROM audit_log WHERE id BETWEEN 5 AND 9;
		DELETE FROM audit_seals WHERE seq BETWEEN 5 AND 10;
		ALTER TABLE audit_log ENABLE TRIGGER USER`)
	for _, want := range []int{3, 0} {
		if said, status := ts.verify(); status != want || !strings.Contains(said, "the seals 5 to 10 are missing\nhead ") {
			t.Errorf("status %d, want %d: %s", status, want, said)
		}
	}
	check(t, "rows that tell of breaks", ts.breaks(), 1)
}

// TestSealerSeesLateCut: rows that are made to wait again by hand after the sealer has looked for a break, and before it
// lists the rows that wait, are not sealed before the row that tells of the break.
func TestSealerSeesLateCut(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	ts.remembers(9)
	said, _ := ts.verify()
	ts.exec(`ALTER TABLE audit_seals DISABLE TRIGGER USER`)
	err := pgx.BeginFunc(t.Context(), ts.db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `LOCK TABLE audit_unsealed`)
		waitFor(t, "the sealer to list the rows", func() bool {
			return err != nil || ts.queryInt(`SELECT count(*) FROM pg_locks WHERE relation = 'audit_unsealed'::regclass AND NOT granted`) == 1
		})
		const cut = `WITH gone AS (DELETE FROM audit_seals WHERE seq > 3 RETURNING audit_id) INSERT INTO audit_unsealed SELECT audit_id FROM gone`
		_, failed := tx.Exec(t.Context(), cut)
		return errors.Join(err, failed)
	})
	if err != nil {
		t.Fatal(err)
	}
	ts.brokenAt(10, headOf(said))
}

// TestSealsOfManyRows: two instances seal a thousand rows and more while they are added, and each row gets one seal.
func TestSealsOfManyRows(t *testing.T) {
	t.Parallel()
	one, two := startTwoServers(t)
	var adding sync.WaitGroup
	for _, ts := range []*testServer{one, two} {
		for range 4 {
			adding.Go(func() { ts.auditRows(150) })
		}
	}
	const many = `INSERT INTO audit_log (actor, credential, address, request_id, action, target) SELECT 'operator', '', '', '', 'test', '' FROM generate_series(1, 2500)`
	one.exec(many)
	adding.Wait()
	total := one.queryInt(`SELECT count(*) FROM audit_log`)
	one.sealedUpTo(total)
	two.remembers(total)
	one.remembers(total)
	if said, status := one.verify(); status != 0 || one.breaks() != 0 || !strings.Contains(said, fmt.Sprint("head ", total, ":")) {
		t.Error(said, status)
	}
}

// TestKeysSwapped: after the key file was replaced, sealing goes on with the new key. The seals by the former one are one
// break, and a row tells of the keys.
func TestKeysSwapped(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	ts.remembers(9)
	former := ts.keys.Load().keys[0].id
	ts.stop()
	if err := os.WriteFile(ts.cfg.keysPath(), []byte(newKeyLine()), 0o600); err != nil {
		t.Fatal(err)
	}
	two := startServer(t, nil, ts.env...)
	two.sealedUpTo(10) // the row that tells of the keys
	for _, want := range []int{3, 0} {
		said, status := two.verify()
		if status != want || !strings.Contains(said, fmt.Sprintf("seals 1 to 9 (rows 1 to 9): the key file has no key %q [", former)) {
			t.Errorf("status %d, want %d: %s", status, want, said)
		}
	}
	two.sealedUpTo(11)
	if n := two.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'audit.keys_changed'`); n != 1 || two.breaks() != 1 {
		t.Errorf("%d changes of keys, %d breaks", n, two.breaks())
	}
}

// TestSealsOfUnknownKey: an instance that meets seals by a key that it does not know seals on after them, and adds no row
// for each.
func TestSealsOfUnknownKey(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	foreign, err := parseKeys([]byte(newKeyLine()))
	if err != nil {
		t.Fatal(err)
	}
	z := sealer{}
	for seals := 0; seals < 3; {
		ts.auditRows(1)
		if _, _, err := z.sealRows(t.Context(), ts.db, foreign); err != nil {
			t.Fatal(err)
		}
		seals = ts.queryInt(`SELECT count(*) FROM audit_seals WHERE kid = $1`, foreign.keys[0].id)
	}
	ts.auditRows(1)
	waitFor(t, "all seals", func() bool { return ts.queryInt(`SELECT count(*) FROM audit_unsealed`) == 0 })
	check(t, "breaks", ts.breaks(), 0)
	if said, status := ts.verify(); status != 3 || !strings.Contains(said, "the key file has no key") {
		t.Error(said, status)
	}
}

// formerDatabase returns a new database with the schema of version 1.0.0, after these statements.
func formerDatabase(t *testing.T, statements string) (url string) {
	t.Helper()
	url = newDatabase(t)
	former := `DROP SCHEMA public CASCADE; CREATE SCHEMA public;
		CREATE TABLE schema_migrations (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now());
		INSERT INTO schema_migrations (version) VALUES (1), (2);`
	for _, step := range migrations()[:2] {
		former += step
	}
	change(t, []string{"CAIRN_DATABASE_URL=" + url}, former+";"+statements)
	return url
}

// TestBreaksOfFormerVersion: breaks that version 1.0.0 noted in a table of its own, accepted or not, are rows of the log
// after the upgrade.
func TestBreaksOfFormerVersion(t *testing.T) {
	t.Parallel()
	url := formerDatabase(t, `
		INSERT INTO audit_breaks (id, seen_at, finding) VALUES ('a', '2026-01-01', 'the first');
		INSERT INTO audit_breaks (id, seen_at, finding, accepted) VALUES ('b', '2026-01-02', 'the second', 'x')`)
	two := startServer(t, nil, "CAIRN_DATABASE_URL="+url)
	for finding, accepted := range map[string]bool{"the first": false, "the second": true} {
		n := two.queryInt(`SELECT count(*) FROM audit_log WHERE action = 'audit.break_found' AND after -> 'findings' = to_jsonb(ARRAY[$1]) AND after -> 'was_accepted' = to_jsonb($2::boolean)`, finding, accepted)
		if n != 1 {
			t.Errorf("%s: %d rows", finding, n)
		}
	}
	if said, status := two.verify(); status != 0 {
		t.Error(said, status)
	}
}

// TestPruneChecks: a prune removes no rows with a break before a row tells of it.
func TestPruneChecks(t *testing.T) {
	t.Parallel()
	ts := startServer(t, nil)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	ts.stop()
	change(t, ts.env, `ALTER TABLE audit_log DISABLE TRIGGER USER`)
	change(t, ts.env, `UPDATE audit_log SET actor = 'nobody' WHERE id = 4`)
	change(t, ts.env, `ALTER TABLE audit_log ENABLE TRIGGER USER`)

	prune := []string{"audit", "prune", "--before", "2999-01-01"}
	said, err := ts.command(prune...)
	if exitStatus(err) != 3 || !strings.Contains(said, "seals 4 to 4 (rows 4 to 4): "+wrongSeal) {
		t.Errorf("the first prune: %s %v, want the break and status 3", said, err)
	}

	said, err = ts.command(prune...)
	if err != nil || !strings.Contains(said, "removed 9 rows") {
		t.Errorf("the second prune: %s %v, want 9 rows removed", said, err)
	}
}

// TestCheckpointOfFormerKey: a checkpoint that another key of the key file made is a checkpoint.
func TestCheckpointOfFormerKey(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte(newKeyLine()+newKeyLine()), 0o600); err != nil {
		t.Fatal(err)
	}
	ts := startServer(t, nil, "CAIRN_KEYS_FILE="+file)
	ts.auditRows(8)
	ts.sealedUpTo(9)
	keys := ts.keys.Load().keys
	other := &keyring{keys: []key{keys[1], keys[0]}}
	if n, found, err := pruneAudit(t.Context(), ts.db, other, ts.now()); n != 9 || found != nil || err != nil {
		t.Fatal(n, found, err)
	}
	ts.auditRows(2)
	ts.sealedUpTo(12)
	if said, status := ts.verify(); status != 0 || ts.breaks() != 0 {
		t.Error(said, status)
	}
}

// change runs statements on the database of a service, whether it runs or not.
func change(t *testing.T, env []string, statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), lookup(env, "CAIRN_DATABASE_URL"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatal(err)
	}
}
