-- ARGV: id, keys. Returns the keys that are missing.
local data, id = KEYS[1], ARGV[1]
local missing = {}
for i = 2, #ARGV do
  redis.call('SREM', data .. ':w:' .. ARGV[i], id)
  if redis.call('HEXISTS', data, ARGV[i]) == 0 then
    missing[#missing + 1] = ARGV[i]
  end
end
redis.call('HDEL', data .. ':need', id)
redis.call('DEL', data .. ':wake:' .. id)
return missing
