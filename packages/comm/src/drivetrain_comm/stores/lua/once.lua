-- ARGV: time to live, writer, number of the write, key, arguments.
local once = data .. ':once'
local last = redis.call('HMGET', once, ARGV[2] .. ':number', ARGV[2])
if last[1] == ARGV[3] then return last[2] end
local function reply(value)
  redis.call('HSET', once, ARGV[2] .. ':number', ARGV[3], ARGV[2], value)
  redis.call('PEXPIRE', once, ttl)
  return tostring(value)
end
local key = ARGV[4]
