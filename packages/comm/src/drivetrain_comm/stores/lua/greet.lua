-- KEYS[2] is the job, of which KEYS[1] is one start. ARGV: time to live, a random mark or
-- nothing. Returns the mark that stands.
local born = KEYS[2] .. ':born'
if ARGV[2] ~= '' then redis.call('SET', born, ARGV[2], 'NX') end
for _, name in ipairs({KEYS[1], KEYS[1] .. ':once', KEYS[2], born}) do
  redis.call('PEXPIRE', name, ARGV[1])
end
return redis.call('GET', born)
